"""The storage engine of waltzctl: files, sockets and everything that is done with them.  Nothing here prints."""
