"""What a run runs on: device, driver, libraries, dispatch environment."""
