"""`corl run`: a whole cohort as processes of one machine.

One folder holds a run: its resolved cohort file, its problems (without answers unless the reward is `truth`), state,
logs, weights, and a folder for each member. `plan` says what is started, `supervisor` starts it in order, keeps it
running and ends it, `view` shows how it goes. It speaks to judges and trainers by command line, signals, readiness
probes and files only, so that it is light and neither can take it down.
"""
