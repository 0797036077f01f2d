"""The command line of gradscore."""
