"""Tables, figures, claims and the page of a study, made from its records."""
