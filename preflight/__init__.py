"""The sums before a training run: config -> plan -> estimate -> verdict -> lowering, and the record afterwards.

Each part imports only downward (checked by import-linter, see pyproject.toml):

    rundir                  the folder of a run, and the bill replayed from it
    report, record          text and JSON of a bill; the ledger of all runs
    compare                 the same job on every card and offer
    bill                    one call: plan in, estimate, verdict and lowered plan out
    calibration, lowering   what earlier runs say; the three lowerings
    checks, verdict, flat   machine and budgets held against the estimate
    estimate                memory, step_time, duration, cost, value in one
    params, rates, schedule, priors
    resolve                 config + machine + catalog -> plan
    catalog, dataset        cards, prices, tariffs; prepared token files
    machine                 the only code that looks at this computer
    plan, planfile, actual  the frozen plan, its JSON, what a run really needed
    units, errors, band
"""
