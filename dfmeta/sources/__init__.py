"""Identity sources: which instance is on which port."""
