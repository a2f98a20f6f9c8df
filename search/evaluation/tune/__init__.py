"""Settings for a corpus, picked without labels (`unlabelled`) or by judgements (`judged`); `choice` decides."""
