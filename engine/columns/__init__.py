"""What a printed object consists of: one table of columns each, from which every form of it follows."""
