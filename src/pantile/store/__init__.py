"""Files that are what was written, or an error: containers, the executable cache, trust."""
