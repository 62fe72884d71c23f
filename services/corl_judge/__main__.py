from corl_judge.cli import main

main()
