"""What people look at after a run. Reads run directories; never imports the trainer."""
