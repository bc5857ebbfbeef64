"""Tables, figures, claims and the HTML report of a study, made from its records; archives of finished studies."""
