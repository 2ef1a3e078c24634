"""How the families are computed: one file an implementation, one signature a family."""
