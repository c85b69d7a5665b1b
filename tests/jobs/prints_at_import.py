from has_routes import Job

print("something", Job)
