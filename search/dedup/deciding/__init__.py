"""Which documents stay, and who stands for the others.

greedy      the rule; claims  what kept documents say of the marks of others
collection  what the rule needs to know of the documents
order       which of two duplicates stays
distinct    vectors that are the same, byte by byte
texts       texts that are the same after normalisation
"""
