"""Output: one file per format, all of them over the objects of waltzctl/objects and engine/columns."""
