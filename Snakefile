# Entry point of the workflow: `snakemake --cores 2 --configfile config/demo.yaml`.
include: "workflow/Snakefile"


# A Snakefile that only includes another has no first rule and would silently do nothing.
rule reproduce:
    default_target: True
    input:
        rules.all.input,
