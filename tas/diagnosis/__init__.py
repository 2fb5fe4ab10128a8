"""Why an installation does not work: facts about it in, findings for people out."""
