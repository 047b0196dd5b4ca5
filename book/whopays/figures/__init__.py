"""Figures and tables of single pages, drawn from recorded runs: a module for a part of the book.

A page calls each in one line: ``faces.draw(figures.each_group)``. Nothing here trains.
"""
