"""Worker processes: how they are started, fed, watched, ended and replaced."""
