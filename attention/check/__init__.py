"""The contract that every mechanism keeps, as functions: for the tests, and for a mechanism of a user's own."""
