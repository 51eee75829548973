"""The processes of a run, each put together from parts of the other packages."""
