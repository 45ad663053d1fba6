"""What goes over a wire or a terminal and is the same on both ends: certificates, access, watched files, the console."""
