"""`reckon serve`: the explorer, a page on this machine that predicts as one types.

It listens on the loopback interface only, takes names and mappings, never paths, and answers bad
input with 422 and the same line as the command line. FastAPI is optional (`reckon[serve]`).
"""

from reckon.serve.app import application, serve

__all__ = ["application", "serve"]
