"""Archives of a study, a look at the machine, a cluster's launcher."""
