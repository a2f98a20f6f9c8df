"""Tuning of settings for a corpus, without labels (`unlabelled`) or with judgements (`judged`); `choice` decides."""
