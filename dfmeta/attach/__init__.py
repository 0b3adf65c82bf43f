"""Attachments: VLAN ids, addresses and MACs for the containers of VMs with a trunk."""
