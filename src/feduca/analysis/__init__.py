"""Questions about a recipe: does misreporting pay, does shirking pay, how are its data spread?"""
