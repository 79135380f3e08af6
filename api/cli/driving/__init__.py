"""A run driven from the command line: polled, stopped by signals, told at its end."""
