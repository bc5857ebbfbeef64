"""Models and how they are trained, finetuned, evaluated dynamically and fitted to known laws."""
