"""The life of the process: loading the extension, reading the environment, ending the program."""
