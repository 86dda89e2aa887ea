"""Reading jobs from files, and making them up. One module a format, all found in `formats.FORMATS`."""
