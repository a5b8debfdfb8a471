"""The life of the process: how the extension is loaded, what the environment asks for, how the program ends."""
