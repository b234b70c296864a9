"""The page of the service for browsers: jobs, a job, devices. It is rendered here from the same store that the API
reads. It works without scripts; with them it follows what happens. Nothing on it comes from elsewhere."""
