# What a machine gets: the library with what it needs, its header, the Python package.
