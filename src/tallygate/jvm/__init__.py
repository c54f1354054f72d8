"""Java, and the jars that its programs need."""
