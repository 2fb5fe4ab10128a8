"""`tas doctor`: obtains facts about an installation, each within a time limit, and prints what they mean."""
