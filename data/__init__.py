"""Feeds: datasets, their order, their samples.

Pure are the manifest, order, skips, cursor and digest; the others read and write files.
"""
