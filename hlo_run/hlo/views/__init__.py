"""Views: the attributes of one instruction that are read together, with types, a file for each family of opcodes.

A view is read once and not kept: it does not follow later edits of its instruction.
"""
