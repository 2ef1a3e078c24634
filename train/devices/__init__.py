"""Where arrays live: meshes, processes, memory and compilation."""
