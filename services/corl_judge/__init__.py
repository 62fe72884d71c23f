"""The peer-judge service: one cohort member's model behind a REST API."""
