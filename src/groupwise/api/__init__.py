"""The functions behind `import groupwise as gw`. Import them from `groupwise`, not from here."""
