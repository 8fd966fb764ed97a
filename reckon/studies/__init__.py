"""Studies that ship with reckon: a YAML file each (`data/studies`), its figures and its reading."""

from reckon.studies.run import names, study

__all__ = ["names", "study"]
