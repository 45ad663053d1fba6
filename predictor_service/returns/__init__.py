"""What a sidecar learns of returns while it serves: the turns it tells its return model of, the refits, the state it keeps."""
