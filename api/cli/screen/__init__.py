"""What a run looks like in letters, at any width.

Belongs here: words for numbers, bars, strips, pages, the display of a run. A value comes in and
text goes out; nothing is asked for, and what is too wide is wrapped and never cut.
"""
