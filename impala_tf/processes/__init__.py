"""The processes of a run, each put together from the other packages' parts."""
