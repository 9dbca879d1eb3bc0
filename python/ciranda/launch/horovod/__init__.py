"""horovodrun's options and its file of knobs."""
