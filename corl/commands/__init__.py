"""The commands of `corl` itself; the judge's and the trainer's come with those packages."""
