"""The process' own means: its clock."""
