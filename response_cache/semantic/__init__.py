"""The semantic tier's decision: the nearest question, vetoes, evidence, and the similarity threshold that it permits."""
