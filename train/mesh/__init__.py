"""Devices: meshes, sharding, replicas, processes, memory and compilation."""
