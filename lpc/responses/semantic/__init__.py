"""When another question's answer may be served: the nearest question, vetoes, evidence, and the threshold that it allows."""
