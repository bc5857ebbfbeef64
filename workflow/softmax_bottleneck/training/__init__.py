"""Language models: training, finetuning, dynamic evaluation, and fits to known distributions."""
